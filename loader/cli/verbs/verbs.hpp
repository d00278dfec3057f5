// SPDX-License-Identifier: Apache-2.0
//
// Verbs: what each word of `kiln` does, a line for each. main.cpp's table has their words.
#pragma once

#include <string>
#include <vector>

#include "loader/cli/verbs/kernel_command.hpp"

namespace kiln::cli {

/// "geglu-mlp@1" of each variant in the default cache; none of what is damaged.
std::vector<std::string> installed_packages();

/// The variants of the last NAME@VERSION among the words, as the default cache knows them without a
/// request; none where there is no such word or the cache does not know it.
std::vector<std::string> known_variants(const std::vector<std::string>& words);

/// One line for each fact of a machine.
void print_host(const Host& host);

/// Installs the packages that are named (or locked) and prints each.
int install_all(const Options& options);

void install(KernelCommand& command);  ///< fetches, verifies and unpacks; loads nothing
void resolve(
    KernelCommand& command);          ///< which variant would be taken, and why; kNoVariant if none
void add(KernelCommand& command);     ///< a kernel into kiln.lock, the newest version by default
void remove(KernelCommand& command);  ///< and out of it; kLock where it is not there
void update(KernelCommand& command);  ///< moves kiln.lock to the newest versions, or variants
void outdated(KernelCommand& command);  ///< what is newer than kiln.lock, or than what is installed
void audit(KernelCommand& command);   ///< the advisories about what is held; kTrust if any refuses
void search(KernelCommand& command);  ///< the packages of a registry
void uninstall(
    KernelCommand& command);         ///< out of the cache; kLock, kCache for what something holds
void login(KernelCommand& command);  ///< how to log in to a registry, and which login there is
void lock(KernelCommand& command);   ///< writes kiln.lock, or says what would change; kLock
void bundle_create(KernelCommand& command);   ///< kernels into one file
void bundle_install(KernelCommand& command);  ///< and out of it
void trust_add(KernelCommand& command);       ///< whose metadata vouches for a registry's versions
void trust_list(KernelCommand& command);
void trust_require(KernelCommand& command);  ///< whose signatures must be there, over that
void trust_remove(KernelCommand& command);
void list(KernelCommand& command);       ///< what is in the cache
void path(KernelCommand& command);       ///< the file get_kernel would load, hashed; kNotFound
void cache_dir(KernelCommand& command);  ///< where the cache is
void cache_verify(
    KernelCommand& command);  ///< hashes what is installed; kIntegrity if anything differs
void cache_gc(KernelCommand& command);      ///< removes from the cache what nothing holds
void cache_repair(KernelCommand& command);  ///< removes what is damaged and fetches it again
void info(KernelCommand& command);          ///< versions, ops and variants of a package
void host(KernelCommand& command);          ///< this machine's facts, for --host elsewhere
void doctor(KernelCommand& command);        ///< this machine, what it would get, and what to fix
void test(KernelCommand& command);  ///< a version's numeric check on this machine; kIntegrity
void tune(KernelCommand& command);  ///< times the kernels that a package offers, and keeps the best
void diff(KernelCommand& command);  ///< what differs between two versions, or two variants of one
void completions(KernelCommand& command);  ///< the script that makes a shell complete all of this

}  // namespace kiln::cli
