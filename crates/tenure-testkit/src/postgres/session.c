// A process of the server stays in the session of its test. Its own group it has all the same, and signals go there.
//
// Linux shares its processors among sessions first (autogroup), and some kernels give a session that sleeps most of the time nothing
// for seconds beside one that is always busy (docs/decisions/builds-and-tests.md). A test would measure that.

#include <sys/types.h>
#include <unistd.h>

pid_t setsid(void) {
    return setpgid(0, 0) == 0 ? getpid() : (pid_t)-1;
}
