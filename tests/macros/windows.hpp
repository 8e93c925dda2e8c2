// The real one. Microsoft's own rpcndr.h defines `small` besides, where MinGW's does so for
// resource files alone; and the headers of MinGW's C++ library keep min and max away from it.
#include <ole2.h>
#include <windows.h>
#include <winsock2.h>

#if !defined(near) || !defined(far) || !defined(interface)
#error "this windows.h leaves less behind than the test is for"
#endif
#define small char
#ifndef max
#define min(a, b) (((a) < (b)) ? (a) : (b))
#define max(a, b) (((a) > (b)) ? (a) : (b))
#endif
