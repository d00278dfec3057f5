/* SPDX-License-Identifier: Apache-2.0
 *
 * launch REPORT [--no-memfd] PROGRAM ARGUMENT…: runs a program from a process so small that the
 * peak memory which the kernel counts is the program's own, and writes "<kilobytes> <512-byte
 * blocks written>" into REPORT. With --no-memfd memfd_create fails with EPERM, as in a strict
 * sandbox.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int forbid_memfd(void) {
  struct sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog filter = {sizeof(program) / sizeof(program[0]), program};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) return -1;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter);
}

int main(int argc, char** argv) {
  if (argc < 3) return 125;
  char** program = argv + 2;
  const int strict = strcmp(*program, "--no-memfd") == 0;
  program += strict;
  const pid_t pid = fork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // who gives up on this process means that one
    if (strict && forbid_memfd() != 0) _exit(125);
    execv(program[0], program);
    _exit(126);
  }
  signal(SIGXFSZ, SIG_IGN);  // the limits are the program's
  int status = 0;
  struct rusage usage;
  if (pid < 0 || wait4(pid, &status, 0, &usage) != pid) return 125;
  FILE* report = fopen(argv[1], "w");
  if (report == NULL) return 125;
  fprintf(report, "%ld %ld\n", usage.ru_maxrss, usage.ru_oublock);
  fclose(report);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
