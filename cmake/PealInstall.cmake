# What `cmake --install` puts where: headers, libpeal.so, find_package(peal) and pkg-config peal. The tools and
# benches install themselves beside it. Everything works from any place: no path of the build tree stays in.

include(CMakePackageConfigHelpers)
set(peal_config_dir "${CMAKE_INSTALL_LIBDIR}/cmake/peal")

install(TARGETS peal peal_headers EXPORT pealTargets)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/peal" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

install(EXPORT pealTargets NAMESPACE peal:: DESTINATION "${peal_config_dir}")
configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/pealConfig.cmake.in"
                              "${PROJECT_BINARY_DIR}/pealConfig.cmake" INSTALL_DESTINATION "${peal_config_dir}")
# Before 1.0 every minor version may break the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/pealConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/pealConfig.cmake" "${PROJECT_BINARY_DIR}/pealConfigVersion.cmake"
        DESTINATION "${peal_config_dir}")

# peal.pc finds its prefix from its own place, so it says how far up that is.
file(RELATIVE_PATH PEAL_PC_TO_PREFIX "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
string(REGEX REPLACE "/$" "" PEAL_PC_TO_PREFIX "${PEAL_PC_TO_PREFIX}")
configure_file("${PROJECT_SOURCE_DIR}/cmake/peal.pc.in" "${PROJECT_BINARY_DIR}/peal.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/peal.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
