# SPDX-License-Identifier: Apache-2.0
# Makes ${PRESETS_SOURCE}, the presets of this folder as C strings (engine/model/preset.h), and makes
# it anew when one of them changes.
file(GLOB PRESETS CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/*.json)
set(PRESETS_SOURCE ${CMAKE_BINARY_DIR}/presets.c)
set(entries "")
set(count 0)
foreach(file IN LISTS PRESETS) # file(GLOB) sorts
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  get_filename_component(name ${file} NAME_WLE)
  file_c_string(text ${file})
  string(APPEND entries "    {\"${name}\",\n     \"${text}\"},\n")
  math(EXPR count "${count} + 1")
endforeach()
file(CONFIGURE OUTPUT ${PRESETS_SOURCE} @ONLY CONTENT
"#include \"engine/model/preset.h\"

const struct preset presets[] = {
@entries@};
const size_t num_presets = @count@;
")
