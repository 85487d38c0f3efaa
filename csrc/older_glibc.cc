// The names of newer glibc that the core would need, taken back to those of 2.28: so that what is built on a machine of
// today runs on RHEL 8, Debian 10 and Amazon Linux 2023 too. Part of the module itself, so that libstdc++'s own calls end
// here as well; exports.map keeps the names inside, and CMakeLists.txt asks for the library that they were in.
#include <pthread.h>

#ifdef __GLIBC_PREREQ

#if __GLIBC_PREREQ(2, 32)
// Whether this process is known to have one thread: libstdc++ then counts shared_ptr without atomics. Never, here.
extern "C" char __libc_single_threaded;
char __libc_single_threaded = 0;
#endif

#if __GLIBC_PREREQ(2, 34)  // where libpthread became a part of libc, and its names got a second version
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
