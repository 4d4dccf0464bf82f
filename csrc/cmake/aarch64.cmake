# Compiles for 64-bit Arm on another processor (Debian: g++-aarch64-linux-gnu) and runs what it made under QEMU
# (qemu-user-static). The preset `aarch64` uses it for the kernels and the driver that prints what they give.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static)
# An emulated program would look for Arm's shared libraries in this system's folders.
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
