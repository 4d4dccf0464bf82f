# Flags of every target of ours, as the interface target hpcai500_settings.
add_library(hpcai500_settings INTERFACE)

# Without contraction a*b+c rounds twice on every processor, as it does in the tests' reference: crop boxes must
# be equal to the bit. The vector kernels ask for fused operations by name.
target_compile_options(hpcai500_settings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -ffp-contract=off)
if(HPCAI500_WERROR)
  target_compile_options(hpcai500_settings INTERFACE -Werror)
endif()
if(HPCAI500_SANITIZE)
  target_compile_options(hpcai500_settings INTERFACE -fsanitize=${HPCAI500_SANITIZE} -fno-omit-frame-pointer
                                                     -fno-sanitize-recover=all)
  target_link_options(hpcai500_settings INTERFACE -fsanitize=${HPCAI500_SANITIZE})
endif()
# -O3 also where CMake would say -O2 (RelWithDebInfo): the portable kernel lives from vectorised loops.
target_compile_options(hpcai500_settings INTERFACE $<$<CONFIG:Release,RelWithDebInfo>:-O3>)
