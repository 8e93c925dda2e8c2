// <X11/X.h>, <X11/Xlib.h> and <X11/Xutil.h>.
#define None 0L
#define Bool int
#define Status int
#define True 1
#define False 0
#define Always 2
#define WhenMapped 1
#define NotUseful 0
#define Success 0
#define BadRequest 1
#define BadValue 2
#define BadMatch 8
#define BadAlloc 11
#define Above 0
#define Below 1
#define Complex 0
#define Nonconvex 1
#define Convex 2
#define Unsorted 0
#define YSorted 1
#define YXSorted 2
#define KeyPress 2
#define KeyRelease 3
#define FocusIn 9
#define FocusOut 10
#define Expose 12
#define NoExpose 14
#define CursorShape 0
#define ParentRelative 1L
#define CopyFromParent 0L
#define InputOutput 1
#define InputOnly 2
#define PointerWindow 0L
#define InputFocus 1L
#define AnyPropertyType 0L
#define AnyKey 0L
#define AnyButton 0L
#define AllTemporary 0L
#define CurrentTime 0L
#define NoSymbol 0L
#define ShiftMask (1 << 0)
#define LockMask (1 << 1)
#define ControlMask (1 << 2)
#define Mod1Mask (1 << 3)
#define Button1 1
#define GrayScale 1
#define StaticColor 2
#define TrueColor 4
#define DirectColor 5
#define LineSolid 0
#define CapRound 2
#define JoinRound 1
#define FillSolid 0
#define WindingRule 1
#define XValue 0x0001
#define YValue 0x0002
#define WidthValue 0x0004
#define HeightValue 0x0008
#define AllValues 0x000F
#define NoValue 0x0000
#define IsViewable 2
#define RootWindow(dpy, scr) (dpy)
#define Autorepeat 1
