// What <curses.h> makes of common words in C, and in C++ where the curses is old. (`move` and
// `clear` are members of the standard library, so a curses for C++ leaves them alone.)
#define addch(ch) waddch(stdscr, (ch))
#define addstr(str) waddnstr(stdscr, (str), -1)
#define attrset(at) wattrset(stdscr, (at))
#define border(ls, rs, ts, bs, tl, tr, bl, br) wborder(stdscr, ls, rs, ts, bs, tl, tr, bl, br)
#define box(win, v, h) wborder(win, v, v, h, h, 0, 0, 0, 0)
#define delch() wdelch(stdscr)
#define deleteln() winsdelln(stdscr, -1)
#define echochar(c) wechochar(stdscr, (c))
#define getch() wgetch(stdscr)
#define inch() winch(stdscr)
#define insertln() winsdelln(stdscr, 1)
#define refresh() wrefresh(stdscr)
#define scrl(n) wscrl(stdscr, (n))
#define setscrreg(t, b) wsetscrreg(stdscr, (t), (b))
#define standend() wstandend(stdscr)
#define standout() wstandout(stdscr)
#define timeout(delay) wtimeout(stdscr, (delay))
#define getyx(win, y, x) (y = 0, x = 0)
#define OK 0
#define ERR (-1)
#define COLOR_RED 1
#define KEY_DOWN 0402
#define KEY_BREAK 0401
