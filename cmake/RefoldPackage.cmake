# Debian packages by CPack (scripts/package-deb): refold, the program with all that it needs, and refold-torch, the
# torch engine for training, where the build has one. Headers and static libraries are for builds of one's own.
include_guard(GLOBAL)

install(FILES "${PROJECT_SOURCE_DIR}/packaging/copyright" DESTINATION share/doc/refold COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/packaging/grafana-refold.json" DESTINATION share/refold COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/packaging/systemd/refold.service" "${PROJECT_SOURCE_DIR}/packaging/systemd/refold.socket"
    DESTINATION lib/systemd/system COMPONENT debian EXCLUDE_FROM_ALL)
install(FILES "${PROJECT_SOURCE_DIR}/packaging/copyright" DESTINATION share/doc/refold-torch COMPONENT debian_torch EXCLUDE_FROM_ALL)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME refold)
set(CPACK_PACKAGE_VENDOR "refold")
set(CPACK_PACKAGE_CONTACT "refold maintainers <maintainers@refold.invalid>")
set(CPACK_PACKAGE_DIRECTORY "${PROJECT_BINARY_DIR}/packages")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program libraries manual data debian)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ONE_PER_GROUP)
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
    string(TOUPPER "${component}" upper)
    set(CPACK_COMPONENT_${upper}_GROUP refold)
endforeach()
# Folders that umask made writable for a group, and that CPack makes itself.
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
# Relative to the tree that is being packed, where dpkg-shlibdeps runs.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS "usr/${REFOLD_LIBRARIES}")
set(CPACK_DEBIAN_REFOLD_PACKAGE_NAME refold)
# refold's rpath names this OpenBLAS (cmake/RefoldBlas.cmake); without it any other one does.
set(CPACK_DEBIAN_REFOLD_PACKAGE_RECOMMENDS "libopenblas0-openmp, ca-certificates")
# Empty: CPack would put one summary before the descriptions of both packages.
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "")
set(CPACK_DEBIAN_REFOLD_DESCRIPTION "${PROJECT_DESCRIPTION}
refold makes pretrained transformers smaller and faster: it shares redundant weights and runs the result so that sharing pays off at run time. The program fetches a model, compresses it, measures it, serves it and exports it.")

if(REFOLD_HAVE_TORCH)
    list(APPEND CPACK_COMPONENTS_ALL torch debian_torch)
    set(CPACK_COMPONENT_TORCH_GROUP torch)
    set(CPACK_COMPONENT_DEBIAN_TORCH_GROUP torch)
    set(CPACK_DEBIAN_TORCH_PACKAGE_NAME refold-torch)
    set(CPACK_DEBIAN_TORCH_PACKAGE_DEPENDS "refold (= ${PROJECT_VERSION})")
    set(CPACK_DEBIAN_TORCH_DESCRIPTION "Training for refold
The engine of refold that computes gradients with libtorch. refold finds it when it is installed; the verb train and the methods that train need it.")
endif()

include(CPack)
