// <strings.h> of small C libraries (uClibc): functions that POSIX took out, as macros.
#define index(s, c) strchr((s), (c))
#define rindex(s, c) strrchr((s), (c))
#define bcopy(from, to, n) memmove((to), (from), (n))
#define bzero(s, n) memset((s), 0, (n))
#define bcmp(a, b, n) memcmp((a), (b), (n))
