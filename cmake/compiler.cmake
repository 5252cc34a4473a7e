# Included before project(): where the machine has no C compiler, takes the one inside Python's ziglang package, so that
# `pip install` of this project needs nothing but pip.

if(NOT DEFINED CMAKE_C_COMPILER)
  # scikit-build-core sets CC to what Python was built with, whether or not this machine has it.
  separate_arguments(mlc_env_cc UNIX_COMMAND "$ENV{CC}")
  if(mlc_env_cc)
    list(GET mlc_env_cc 0 mlc_env_cc)
  endif()
  find_program(MLC_SYSTEM_CC NAMES ${mlc_env_cc} cc gcc clang NO_CACHE)
  if(NOT MLC_SYSTEM_CC AND NOT WIN32)
    if(DEFINED Python_EXECUTABLE)
      set(mlc_python "${Python_EXECUTABLE}")
    elseif(DEFINED PYTHON_EXECUTABLE)
      set(mlc_python "${PYTHON_EXECUTABLE}")
    else()
      find_program(mlc_python NAMES python3 python NO_CACHE)
    endif()
    execute_process(
      COMMAND "${mlc_python}" -c "import os, ziglang; print(os.path.dirname(ziglang.__file__))"
      OUTPUT_VARIABLE mlc_zig_dir OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE mlc_zig_missing)
    if(mlc_zig_missing)
      message(FATAL_ERROR "no C compiler: install one, or `pip install ziglang` for the Python at ${mlc_python}")
    endif()
    message(STATUS "No C compiler found; using ${mlc_zig_dir}/zig cc")
    unset(ENV{CC})
    set(CMAKE_C_COMPILER "${mlc_zig_dir}/zig;cc" CACHE STRING "C compiler")
  endif()
endif()

# zig's archiver is a subcommand, which CMAKE_AR cannot say: it holds one path.
if(CMAKE_C_COMPILER MATCHES "zig;cc$")
  list(GET CMAKE_C_COMPILER 0 mlc_zig)
  set(CMAKE_AR "${mlc_zig}" CACHE FILEPATH "archiver" FORCE)
  set(CMAKE_RANLIB "${mlc_zig}" CACHE FILEPATH "archive indexer" FORCE)
  set(CMAKE_C_ARCHIVE_CREATE "<CMAKE_AR> ar qc <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_C_ARCHIVE_APPEND "<CMAKE_AR> ar q <TARGET> <LINK_FLAGS> <OBJECTS>")
  set(CMAKE_C_ARCHIVE_FINISH "<CMAKE_RANLIB> ranlib <TARGET>")
endif()
