"""heed's headers as a Conan package: `conan create .`, then require heed/<version> and find_package(heed)."""
import os
import re

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.files import copy, load


class Heed(ConanFile):
    name = "heed"
    license = "MIT"
    description = "Attention on the CPU: a header-only C++17 library on Eigen"
    package_type = "header-library"
    settings = "os", "compiler"  # to check them; the package is the same for all
    exports_sources = "LICENSE", "include/*"
    no_copy_source = True

    def set_version(self):
        header = load(self, os.path.join(self.recipe_folder, "include/heed/version.hpp"))
        self.version = ".".join(re.findall(r"^#define HEED_VERSION_\w+ (\d+)$", header, flags=re.M))

    def requirements(self):
        self.requires("eigen/[>=3.4 <6]", transitive_headers=True)

    def validate(self):
        check_min_cppstd(self, 17)

    def package_id(self):
        self.info.clear()

    def package(self):
        copy(self, "include/*", self.source_folder, self.package_folder)
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.requires = ["eigen::eigen"]
        if self.settings.os in ("Linux", "FreeBSD"):
            self.cpp_info.system_libs = ["pthread"]
