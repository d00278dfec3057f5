// SPDX-License-Identifier: Apache-2.0
//
// Verbs: what each word of `kiln registry` does, a line for each. main.cpp's table has their words.
#pragma once

#include "registry/cli/registry_command.hpp"

namespace kiln::registry {

void publish_verb(RegistryCommand& command);   ///< built variants into a folder, or to a server
void push_verb(RegistryCommand& command);      ///< versions of a folder to a server
void export_verb(RegistryCommand& command);    ///< the files of the pull API
void list_verb(RegistryCommand& command);      ///< versions, variants and their tests
void check_verb(RegistryCommand& command);     ///< every blob and reference; kIntegrity
void key_verb(RegistryCommand& command);       ///< a key pair into two files
void init_verb(RegistryCommand& command);      ///< the draft of a registry's first root
void rotate_verb(RegistryCommand& command);    ///< that of the next one
void sign_verb(RegistryCommand& command);      ///< the folder's metadata, or a draft
void delegate_verb(RegistryCommand& command);  ///< leaves packages to a publisher
void yank_verb(RegistryCommand& command);      ///< takes a version back
void advisory_publish_verb(RegistryCommand& command);  ///< warns users of variants, or refuses them
void advisory_lift_verb(RegistryCommand& command);     ///< and no more
void advisory_list_verb(RegistryCommand& command);     ///< those that there are
void attest_verb(RegistryCommand& command);            ///< statements about a version
void describe_verb(RegistryCommand& command);          ///< hangs a card on a version
void site_verb(RegistryCommand& command);              ///< the pages, into a folder
void serve_verb(RegistryCommand& command);  ///< the pages and the pull API, to this machine

}  // namespace kiln::registry
