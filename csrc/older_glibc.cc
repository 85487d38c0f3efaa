// Redirects newer glibc symbols to those of glibc 2.28, so that binaries built on a current machine run on RHEL 8, Debian 10
// and Amazon Linux 2023. Linked into the module, so that calls from libstdc++ are redirected too; exports.map hides the
// names, and CMakeLists.txt links the library that had them.
#include <pthread.h>

#ifdef __GLIBC_PREREQ

#if __GLIBC_PREREQ(2, 32)
// True if the process is known to have one thread; libstdc++ then skips atomics for shared_ptr. Always false here.
extern "C" char __libc_single_threaded;
char __libc_single_threaded = 0;
#endif

#if __GLIBC_PREREQ(2, 34)  // libpthread became part of libc, and its symbols got a second version
extern "C" {
int pthread_create_before(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
int pthread_detach_before(pthread_t);
__asm__(".symver pthread_create_before, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_detach_before, pthread_detach@GLIBC_2.2.5");

int pthread_create(pthread_t* thread, const pthread_attr_t* how, void* (*run)(void*), void* with) noexcept {
  return pthread_create_before(thread, how, run, with);
}
int pthread_detach(pthread_t thread) noexcept { return pthread_detach_before(thread); }
}
#endif

#endif
