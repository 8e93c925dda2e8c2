"""The Eigen of this machine under the name that heed's recipe asks for: EIGEN_FOLDER holds Eigen/Core."""
import os

from conan import ConanFile


class SystemEigen(ConanFile):
    name = "eigen"
    version = "3.4.0"
    package_type = "header-library"

    def package_info(self):
        self.cpp_info.bindirs = self.cpp_info.libdirs = []
        self.cpp_info.includedirs = [os.environ["EIGEN_FOLDER"]]
