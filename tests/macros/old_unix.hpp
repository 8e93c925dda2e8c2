// What a compiler that is not set to plain ISO C++ predefines, and configure scripts of old
// programs.
#undef unix
#undef linux
#define unix 1
#define linux 1
#define sun 1
#define vax 1
#define mips 1
#define index strchr
#define rindex strrchr
#define near
#define far
#define huge
