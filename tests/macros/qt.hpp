// <qobjectdefs.h> and <qglobal.h>, without QT_NO_KEYWORDS.
#define slots
#define signals public
#define emit
#define foreach(variable, container) for (variable : container)
#define forever for (;;)
