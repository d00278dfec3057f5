// SPDX-License-Identifier: Apache-2.0
//
// Fork: work that a fork must not cut in two. The child of a fork has one thread; what another
// thread had half done (the dynamic linker's lists, a library's first initialisation, a mutex)
// stays half done there for ever. So a fork of the host waits until no such work is under way. Used
// wherever the loader opens a library or makes something on its first use. Safe from several
// threads.
#pragma once

namespace kiln {

/// While one lives, a fork by another thread waits. May be nested. A fork by its own thread, in a
/// library that it calls, goes on: its child is to start another program.
class NoFork {
 public:
  NoFork();
  ~NoFork();
  NoFork(const NoFork&) = delete;
  NoFork& operator=(const NoFork&) = delete;
};

/// What a fork does around itself, while no NoFork lives: these functions make none, and wait for
/// no thread that may wait for one.
class AroundFork {
 public:
  virtual void before_fork() = 0;
  virtual void after_fork_in_parent() = 0;
  virtual void after_fork_in_child() = 0;

 protected:
  ~AroundFork() = default;
};

/// From now on every fork does so, with what is never destroyed; there is one in a process. Called
/// while a NoFork lives. Not pthread_atfork: a fork that waits for that NoFork has begun, and glibc
/// runs in it no handler that is registered meanwhile.
void at_fork(AroundFork& around);

}  // namespace kiln
