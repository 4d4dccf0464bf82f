# Flags of every target of ours, as the interface target hpcai500_settings.
add_library(hpcai500_settings INTERFACE)

# Without contraction a*b+c rounds twice on every processor, as it does in the tests' reference: crop boxes must
# be equal to the bit. The vector kernels ask for fused operations by name.
target_compile_options(hpcai500_settings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;-Wconversion;-ffp-contract=off>")
if(HPCAI500_WERROR)
  target_compile_options(hpcai500_settings INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Werror>)
endif()
# The device computes as the processor does. No -Wpedantic: the code that nvcc generates for the host is not.
target_compile_options(hpcai500_settings INTERFACE
  "$<$<COMPILE_LANGUAGE:CUDA>:--fmad=false;-Wno-deprecated-gpu-targets;-Xcompiler=-Wall,-Wextra,-Wshadow,-Wconversion>")
if(HPCAI500_WERROR)
  target_compile_options(hpcai500_settings INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings>")
endif()
if(HPCAI500_SANITIZE)
  # Of debugging information a report needs lines only; the rest takes a fifth of the time.
  target_compile_options(hpcai500_settings INTERFACE -fsanitize=${HPCAI500_SANITIZE} -fno-omit-frame-pointer
                                                     -fno-sanitize-recover=all -g1)
  target_link_options(hpcai500_settings INTERFACE -fsanitize=${HPCAI500_SANITIZE})
endif()
# -O3 also where CMake would say -O2 (RelWithDebInfo): the portable kernel lives from vectorised loops. Under a sanitizer a
# check of each lane follows, and at -O3 the compiler takes minutes over one file. A target whose code takes little
# time when it runs says in its property HPCAI500_OPTIMISATION what is enough for it.
set(hpcai500_optimisation -O3)
if(HPCAI500_SANITIZE)
  set(hpcai500_optimisation -O1)
endif()
set(own_optimisation $<TARGET_PROPERTY:HPCAI500_OPTIMISATION>)
target_compile_options(hpcai500_settings INTERFACE
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CONFIG:Release,RelWithDebInfo>>:$<IF:$<BOOL:${own_optimisation}>,${own_optimisation},${hpcai500_optimisation}>>)
