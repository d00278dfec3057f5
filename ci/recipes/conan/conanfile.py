# SPDX-License-Identifier: Apache-2.0
import os

from conan import ConanFile
from conan.errors import ConanInvalidConfiguration
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy, get, rmdir

required_conan_version = ">=2.0"


class KilnConan(ConanFile):
    name = "kiln"
    version = "@VERSION@"
    description = "Prebuilt GPU kernels: one call picks, verifies and loads the binary for this machine"
    license = "Apache-2.0"
    homepage = "@SOURCE@"
    topics = ("gpu", "cuda", "kernels", "deep-learning")
    package_type = "static-library"  # and libkiln.so, for other languages
    settings = "os", "arch", "compiler", "build_type"

    def layout(self):
        cmake_layout(self, src_folder="src")

    def requirements(self):
        self.requires("dlpack/[>=0.6 <2]", transitive_headers=True)
        self.requires("libarchive/[>=3.6 <4]")
        self.requires("libcurl/[>=7.88 <9]")
        self.requires("nlohmann_json/[>=3.11 <4]")
        self.requires("openssl/[>=3 <4]")

    def validate(self):
        if self.settings.os != "Linux" or self.settings.arch not in ("x86_64", "armv8"):
            raise ConanInvalidConfiguration("Kiln is for Linux on x86_64 and armv8")
        if self.settings.get_safe("compiler.libcxx") not in (None, "libstdc++11"):
            raise ConanInvalidConfiguration("Kiln wants compiler.libcxx=libstdc++11: its API has types of that library")
        check_min_cppstd(self, 20)

    def source(self):
        get(self, "@URL@/kiln-@VERSION@.tar.gz", sha256="@SHA256@", strip_root=True)

    def generate(self):
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["KILN_DEVELOPER_MODE"] = False  # the library, and nothing else
        toolchain.generate()
        CMakeDeps(self).generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))
        CMake(self).install()
        rmdir(self, os.path.join(self.package_folder, "share"))
        rmdir(self, os.path.join(self.package_folder, "lib", "pkgconfig"))

    def package_info(self):
        # Its own kiln-config.cmake has kiln::kiln, kiln::c, kiln::abi and kiln_require.
        self.cpp_info.set_property("cmake_find_mode", "none")
        self.cpp_info.builddirs = [os.path.join("lib", "cmake", "kiln")]
        self.cpp_info.libs = ["kiln", "kiln_core"]
        self.cpp_info.system_libs = ["pthread", "dl"]
