# SPDX-License-Identifier: Apache-2.0
# What `cmake --install` puts where, and the Debian packages that `make deb` makes of it: regla (what
# serves) and regla-plot, which alone needs the drawing library.
include(GNUInstallDirs)
set(DEPLOY ${CMAKE_SOURCE_DIR}/deploy)

install(TARGETS regla COMPONENT regla)
if(REGLA_PLOT)
  install(TARGETS regla-plot COMPONENT plot)
endif()

# The program prints its manual and its completion from the tables of its flags.
function(regla_page program component)
  set(page ${CMAKE_BINARY_DIR}/${program}.1.gz)
  set(completion ${CMAKE_BINARY_DIR}/completions/${program})
  add_custom_command(OUTPUT ${page} ${completion}
    COMMAND sh -c "'$<TARGET_FILE:regla>' help --man ${program} | gzip -9n >'${page}'"
    COMMAND sh -c "'$<TARGET_FILE:regla>' help --completion bash >'${completion}'"
    DEPENDS regla VERBATIM)
  add_custom_target(${program}_page ALL DEPENDS ${page} ${completion})
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 COMPONENT ${component})
  install(FILES ${completion} COMPONENT ${component}
          DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
endfunction()
# A sanitized program, or one for another machine, does not run in every build.
if(NOT REGLA_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/completions)
  regla_page(regla regla)
  if(REGLA_PLOT)
    regla_page(regla-plot plot)
  endif()
endif()

set(REGLA_ENVIRONMENT_FILE ${CMAKE_INSTALL_FULL_SYSCONFDIR}/default/regla)
set(SETTINGS ${CMAKE_INSTALL_SYSCONFDIR}/default) # below the prefix, but for /usr
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(SETTINGS ${CMAKE_INSTALL_FULL_SYSCONFDIR}/default)
endif()
configure_file(${DEPLOY}/systemd/regla.service.in regla.service @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/regla.service DESTINATION lib/systemd/system COMPONENT regla)
# It may get a password: systemd reads it as root.
install(FILES ${DEPLOY}/systemd/regla.default RENAME regla
        DESTINATION ${SETTINGS} COMPONENT regla PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ)
install(DIRECTORY ${DEPLOY}/prometheus ${DEPLOY}/grafana ${DEPLOY}/proxy
        DESTINATION ${CMAKE_INSTALL_DATADIR}/regla COMPONENT regla)
install(FILES README.md CHANGELOG.md LICENSE api/api.md ${CMAKE_BINARY_DIR}/openapi.json
        DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/regla COMPONENT regla)

if(NOT CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  return() # paths in the unit are those of the prefix: packages are of the preset deb
endif()
# Debian's own files: the date of this version comes from CHANGELOG.md.
file(STRINGS CHANGELOG.md RELEASE REGEX "^## \\[${PROJECT_VERSION}\\] - ")
string(REGEX REPLACE ".* - " "" RELEASE "${RELEASE}")
execute_process(COMMAND date --utc --date ${RELEASE} -R OUTPUT_VARIABLE RELEASE_DATE
                OUTPUT_STRIP_TRAILING_WHITESPACE)
set(CPACK_PACKAGE_CONTACT "The regla authors <authors@regla.invalid>")
file(WRITE ${CMAKE_BINARY_DIR}/changelog "regla (${PROJECT_VERSION}) unstable; urgency=medium

  * Version ${PROJECT_VERSION}: /usr/share/doc/regla/CHANGELOG.md says what is new.

 -- ${CPACK_PACKAGE_CONTACT}  ${RELEASE_DATE}
")
execute_process(COMMAND gzip -9nf ${CMAKE_BINARY_DIR}/changelog)
foreach(component regla plot)
  string(REPLACE plot regla-plot package ${component})
  install(FILES ${CMAKE_BINARY_DIR}/changelog.gz ${DEPLOY}/debian/copyright
          DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package} COMPONENT ${component})
endforeach()

set(CPACK_GENERATOR DEB)
set(CPACK_COMPONENTS_ALL regla plot)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_NAME regla)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_REGLA_PACKAGE_NAME regla)
set(CPACK_DEBIAN_REGLA_PACKAGE_SECTION net)
set(CPACK_DEBIAN_REGLA_PACKAGE_SUGGESTS regla-plot)
set(CPACK_COMPONENT_REGLA_DESCRIPTION "server for language models with linear or softmax attention
regla serves language models whose attention is linear, softmax or both,
over HTTP, by the completions API of OpenAI. Its commands also continue a
text, score one, and measure models and machines. A request gets the same
bits whatever runs beside it.
.
The service is started by hand, once /etc/default/regla names a model.")
set(CPACK_DEBIAN_REGLA_PACKAGE_CONTROL_EXTRA
    ${DEPLOY}/debian/conffiles ${DEPLOY}/debian/postinst ${DEPLOY}/debian/prerm ${DEPLOY}/debian/postrm)
set(CPACK_DEBIAN_PLOT_PACKAGE_NAME regla-plot)
set(CPACK_DEBIAN_PLOT_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PLOT_PACKAGE_RECOMMENDS "fonts-dejavu-core, regla")
set(CPACK_COMPONENT_PLOT_DESCRIPTION "plots of regla's study of time and memory
Draws what `regla study` measured: time, memory, state and speed against the
number of generated tokens, as SVG and PNG.")
include(CPack)
