# find_package(mlc_rt): targets mlc_rt::mlc_rt (static) and mlc_rt::mlc_rt_shared.
include(CMakeFindDependencyMacro)
find_dependency(Threads)
include("${CMAKE_CURRENT_LIST_DIR}/mlc_rt-targets.cmake")
