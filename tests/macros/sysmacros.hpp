// <sys/sysmacros.h>, which <sys/types.h> includes in older C libraries, <sys/param.h>, <termios.h>,
// and <complex.h> as C has it.
#define major(dev) gnu_dev_major(dev)
#define minor(dev) gnu_dev_minor(dev)
#define makedev(maj, min) gnu_dev_makedev(maj, min)
#define howmany(x, y) (((x) + ((y)-1)) / (y))
#define roundup(x, y) ((((x) + ((y)-1)) / (y)) * (y))
#define powerof2(x) ((((x)-1) & (x)) == 0)
#define setbit(a, i) ((a)[(i) / 8] |= 1 << ((i) % 8))
#define clrbit(a, i) ((a)[(i) / 8] &= ~(1 << ((i) % 8)))
#define isset(a, i) ((a)[(i) / 8] & (1 << ((i) % 8)))
#define isclr(a, i) (((a)[(i) / 8] & (1 << ((i) % 8))) == 0)
#define MIN(a, b) (((a) < (b)) ? (a) : (b))
#define MAX(a, b) (((a) > (b)) ? (a) : (b))
#define NBBY 8
#define B0 0000000
#define B50 0000001
#define B300 0000007
#define CS8 0000060
#define ECHO 0000010
#define I _Complex_I
#define complex _Complex
#define imaginary _Imaginary
