# SPDX-License-Identifier: Apache-2.0
# Makes openapi.json in the build folder, which is this folder's with the program's version in it, and
# ${OPENAPI_SOURCE}, the same as a C string (api/openapi.h). Both are made anew when the file changes.
set(OPENAPI_SOURCE ${CMAKE_BINARY_DIR}/openapi.c)
configure_file(${CMAKE_CURRENT_LIST_DIR}/openapi.json ${CMAKE_BINARY_DIR}/openapi.json @ONLY)
file_c_string(OPENAPI_TEXT ${CMAKE_BINARY_DIR}/openapi.json)
file(CONFIGURE OUTPUT ${OPENAPI_SOURCE} @ONLY CONTENT
"#include \"api/openapi.h\"

const char openapi_document[] =
    \"@OPENAPI_TEXT@\";
")
