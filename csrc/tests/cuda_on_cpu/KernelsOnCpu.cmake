# Compiles .cu files into `target` as C++. To be called where the target is made. Kernels do arithmetic of mixed
# signs freely, as nvcc lets them; -O1, as they are run for seconds and compiled for longer.
function(hpcai500_add_kernels_on_cpu target)
  set_source_files_properties(${ARGN} PROPERTIES LANGUAGE CXX)
  target_sources(${target} PRIVATE ${ARGN})
  target_link_libraries(${target} PRIVATE hpcai500_cuda_on_cpu)
  target_compile_definitions(${target} PRIVATE __CUDACC__)
  target_compile_options(${target} PRIVATE -include cuda_runtime.h)
  set_property(SOURCE ${ARGN} APPEND PROPERTY COMPILE_OPTIONS
    -O1 -Wno-unknown-pragmas -Wno-sign-compare -Wno-conversion -Wno-sign-conversion)
endfunction()
