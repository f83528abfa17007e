# SPDX-License-Identifier: Apache-2.0
# Makes ${PAGE_SOURCE}, the page's files as C arrays (page_files.h), and makes it anew when one of
# them changes. A file's type goes by its name; its ETag is a hash of its bytes.
set(PAGE_TYPES "html=text/html" "css=text/css" "js=text/javascript" "svg=image/svg+xml")
file(GLOB PAGE_FILES CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.html
     ${CMAKE_CURRENT_LIST_DIR}/*.css ${CMAKE_CURRENT_LIST_DIR}/*.js ${CMAKE_CURRENT_LIST_DIR}/*.svg)
set(PAGE_SOURCE ${CMAKE_BINARY_DIR}/page_files.c)
set(arrays "")
set(entries "")
set(count 0)
foreach(file IN LISTS PAGE_FILES)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  get_filename_component(name ${file} NAME)
  get_filename_component(extension ${file} LAST_EXT)
  string(SUBSTRING ${extension} 1 -1 extension)
  foreach(pair IN LISTS PAGE_TYPES)
    if(pair MATCHES "^${extension}=(.*)$")
      set(type ${CMAKE_MATCH_1})
    endif()
  endforeach()
  file(SHA256 ${file} hash)
  string(SUBSTRING ${hash} 0 32 hash)
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(................................)" "\\1\n    " bytes "${bytes}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
  string(APPEND arrays "static const unsigned char FILE_${count}[] = {\n    ${bytes}\n};\n")
  string(APPEND entries "    {\"${name}\", \"${type}; charset=utf-8\", \"\\\"${hash}\\\"\", FILE_${count}, sizeof FILE_${count}},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(CONFIGURE OUTPUT ${PAGE_SOURCE} @ONLY CONTENT
"#include \"server/page/page_files.h\"

@arrays@
const struct page_file page_files[] = {
@entries@};
const size_t num_page_files = @count@;
")
