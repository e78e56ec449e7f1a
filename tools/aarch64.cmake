# The cross tool chain of tools/arm.sh: Debian's compiler, and the headers of the unpacked arm64 Python.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES HEADLONG_ARM_ROOT)
set(Python_INCLUDE_DIR ${HEADLONG_ARM_ROOT}/usr/include/python3.11)
set(CMAKE_CXX_FLAGS_INIT "-isystem ${HEADLONG_ARM_ROOT}/usr/include")
