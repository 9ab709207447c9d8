include_guard(GLOBAL)

# refold_warnings(TARGET): the warnings of refold's own code; never of its dependencies or consumers.
function(refold_warnings target)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
    if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        target_compile_options(${target} PRIVATE -Wno-subobject-linkage)  # takes the files of a group for headers
    endif()
    if(NOT REFOLD_WERROR)
        return()
    endif()
    target_compile_options(${target} PRIVATE -Werror)
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # These depend on what GCC happens to inline, and are at times wrong about library code
        # (std::string, Eigen), more so under the sanitizers. They are shown, but are no errors.
        target_compile_options(${target} PRIVATE
            -Wno-error=maybe-uninitialized -Wno-error=array-bounds -Wno-error=stringop-overflow
            -Wno-error=stringop-overread -Wno-error=restrict -Wno-error=free-nonheap-object
            -Wno-error=null-dereference)
    endif()
endfunction()
