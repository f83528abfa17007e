# SPDX-License-Identifier: Apache-2.0
# Makes ${QUESTIONS_SOURCE}, the hundred questions of this folder as a C string (bench/questions.h), and
# makes it anew when they change.
set(QUESTIONS_SOURCE ${CMAKE_BINARY_DIR}/questions.c)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_CURRENT_LIST_DIR}/questions.jsonl)
file_c_string(QUESTIONS_TEXT ${CMAKE_CURRENT_LIST_DIR}/questions.jsonl)
file(CONFIGURE OUTPUT ${QUESTIONS_SOURCE} @ONLY CONTENT
"#include \"bench/questions.h\"

const char questions_built_in[] =
    \"@QUESTIONS_TEXT@\";
")
