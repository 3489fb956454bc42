# peal_module(NAME SOURCES ... [LIBRARIES ...]): one folder of the library, as an object library.
# peal_library(): libpeal.so from all modules, and peal_internal, the same objects for tests that look inside.
# peal_test(NAME SOURCES ... [FIRST ...] [LIBRARIES ...] [LABELS ...] [COST seconds] [SHARDS n] [OF_HEADERS]
#   [ONE_THREAD] [UNSANITIZED]): a GoogleTest program. FIRST are libraries that stand in for parts of peal_internal. It
#   gets the name of its folder below tests/ as a label (unit, processes, ...), and LABELS besides. COST: about how long
#   it takes under a sanitizer, if more than 10 s. SHARDS: it is long and waits much, so it is run as n tests side by
#   side. OF_HEADERS: what is tested is in headers, so UBSan looks at all of the test: see peal_test_checks.
#   Neither built nor run under the sanitizers are those of the label `slow` and UNSANITIZED ones, in which nothing
#   touches memory that another test does not; those of ONE_THREAD not under the thread sanitizer: no thread of the
#   test, which may be of several processes, calls the library beside another.
# peal_precompile_as_module(TARGET): see below.
# peal_compile_together(TARGET): compiles its sources in a few pieces; modules, tools and tests are.
# peal_compile_quickly(TARGET): its speed is nobody's concern, such as that of what reads a command line: what that
#   makes of CLI11's and JSON's templates takes twice as long to optimize as to compile.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

add_library(peal_options INTERFACE)
# Of the host compiler: PealCuda.cmake has those of nvcc.
set(host "$<$<COMPILE_LANGUAGE:CXX>:")
target_compile_options(peal_options INTERFACE
  "${host}-Wall;-Wextra;-Wshadow;-Wconversion;-Wno-sign-conversion;-Wnon-virtual-dtor;-Werror;-ffp-contract=off>")
if(PEAL_SANITIZE)
  target_compile_options(peal_options INTERFACE "${host}-fsanitize=${PEAL_SANITIZE};-fno-omit-frame-pointer>")
  if(PEAL_SANITIZE MATCHES "undefined")
    # The first finding ends a test anyway; code that need not go on after it takes a quarter less time to compile.
    target_compile_options(peal_options INTERFACE "${host}-fno-sanitize-recover=undefined>")
  endif()
  if(PEAL_SANITIZE MATCHES "address" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The same checks, as calls instead of code at every access: a third less time to compile, half of it in loops that
    # are templates.
    target_compile_options(peal_options INTERFACE "${host}--param=asan-instrumentation-with-call-threshold=0>")
  endif()
  target_link_options(peal_options INTERFACE -fsanitize=${PEAL_SANITIZE})
  # A test program brings the library and its debugging information: ld takes twice as long as lld.
  find_program(PEAL_LLD ld.lld DOC "LLVM's linker, for programs under sanitizers")
  mark_as_advanced(PEAL_LLD)
  if(PEAL_LLD)
    target_link_options(peal_options INTERFACE -fuse-ld=lld)
  endif()
endif()
target_include_directories(peal_options INTERFACE "${PROJECT_SOURCE_DIR}")

# For what is around what is tested, linked last: a tenth less time to compile without those checks of UBSan on
# pointers that AddressSanitizer answers for as well, and that of their alignment. In the library, the simulator and
# the kernels UBSan checks everything.
add_library(peal_test_checks INTERFACE)
if(PEAL_SANITIZE MATCHES "undefined")
  target_compile_options(peal_test_checks INTERFACE "${host}-fno-sanitize=alignment,null,object-size,vptr,pointer-overflow>")
endif()

add_library(peal_headers INTERFACE)
target_include_directories(peal_headers INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)

# Up to this many sources of a target are compiled as one, which halves the time of a build: most of it goes into headers
# and what templates make of them. So names in unnamed namespaces are unique within a target. Where this is OFF (Debug)
# every source is compiled by itself; clang-tidy looks at sources, whatever they were compiled with.
if(CMAKE_BUILD_TYPE STREQUAL "Debug")
  option(PEAL_COMPILE_TOGETHER "Compile several sources of a target as one" OFF)
else()
  option(PEAL_COMPILE_TOGETHER "Compile several sources of a target as one" ON)
endif()
set(peal_sources_at_once 8)
function(peal_compile_together target)
  if(PEAL_COMPILE_TOGETHER)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${peal_sources_at_once})
    # g++ takes what stands in an included file for a header's.
    target_compile_options(${target} PRIVATE
      $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-subobject-linkage>)
  endif()
endfunction()

# The headers of modules are read once for all of them, and those of tests for all test programs, which saves each
# source a second or two. Not by default with a compiler cache: it would take every source for new.
if(CMAKE_CXX_COMPILER_LAUNCHER)
  option(PEAL_PRECOMPILE "Precompile the headers of modules and tests" OFF)
else()
  option(PEAL_PRECOMPILE "Precompile the headers of modules and tests" ON)
endif()

# The headers of modules, for a target that is compiled like one. Sources with options of their own go without.
function(peal_precompile_as_module target)
  if(PEAL_PRECOMPILE)
    target_precompile_headers(${target} REUSE_FROM peal_module_headers)
    cmake_language(EVAL CODE "cmake_language(DEFER CALL peal_skip_precompiled ${target})")
  endif()
endfunction()
function(peal_skip_precompiled target)
  get_target_property(sources ${target} SOURCES)
  foreach(source ${sources})
    get_source_file_property(options "${source}" COMPILE_OPTIONS)
    if(options)
      set_source_files_properties("${source}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endforeach()
endfunction()

function(peal_compile_quickly target)
  target_compile_options(${target} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Og>)
endfunction()

function(peal_module name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  add_library(${name} OBJECT ${arg_SOURCES})
  set_target_properties(${name} PROPERTIES CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  target_link_libraries(${name} PRIVATE peal_options peal_headers fmt::fmt ${arg_LIBRARIES})
  peal_compile_together(${name})
  peal_precompile_as_module(${name})
  set_property(GLOBAL APPEND PROPERTY PEAL_MODULES ${name})
  set_property(GLOBAL APPEND PROPERTY PEAL_LIBRARIES ${arg_LIBRARIES})
endfunction()

function(peal_library)
  get_property(modules GLOBAL PROPERTY PEAL_MODULES)
  get_property(libraries GLOBAL PROPERTY PEAL_LIBRARIES)
  list(TRANSFORM modules REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_library(peal SHARED ${objects})
  # Before 1.0 every minor version may break the interface: its number is in the soname.
  set_target_properties(peal PROPERTIES VERSION ${PROJECT_VERSION} INSTALL_RPATH ""
                                        SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_link_options(peal PRIVATE "LINKER:--version-script=${PROJECT_SOURCE_DIR}/cmake/peal.map")
  set_property(TARGET peal APPEND PROPERTY LINK_DEPENDS "${PROJECT_SOURCE_DIR}/cmake/peal.map")
  add_library(peal::peal ALIAS peal)
  target_link_libraries(peal PUBLIC peal_headers PRIVATE peal_options fmt::fmt Threads::Threads ${libraries})
  add_library(peal_internal STATIC ${objects})
  target_link_libraries(peal_internal PUBLIC peal_headers peal_options fmt::fmt Threads::Threads ${libraries})
endfunction()

# Of a test that hangs; no test takes near as long on any machine.
set(PEAL_TEST_TIMEOUT 600)

function(peal_test name)
  cmake_parse_arguments(arg "ONE_THREAD;OF_HEADERS;UNSANITIZED" "COST;SHARDS" "SOURCES;FIRST;LIBRARIES;LABELS" ${ARGN})
  add_executable(${name} ${arg_SOURCES})
  if(NOT "slow" IN_LIST arg_LABELS)
    # What is tested is optimized as it is installed; the tests around it need not be.
    peal_compile_quickly(${name})
    # Precompiled with the checks of most.
    if(PEAL_PRECOMPILE AND NOT (PEAL_SANITIZE AND arg_OF_HEADERS))
      target_precompile_headers(${name} REUSE_FROM peal_test_headers)
    endif()
  endif()
  if(PEAL_SANITIZE)
    target_compile_definitions(${name} PRIVATE PEAL_SANITIZED)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:peal_sanitizer_options>)
  endif()
  peal_compile_together(${name})
  target_link_libraries(${name} PRIVATE ${arg_FIRST} peal_internal GTest::gtest GTest::gtest_main ${arg_LIBRARIES})
  if(NOT arg_OF_HEADERS)
    target_link_libraries(${name} PRIVATE peal_test_checks)
  endif()
  if(NOT arg_COST)
    set(arg_COST 10)
  endif()
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
  string(REGEX REPLACE "/.*" "" folder "${folder}")
  list(APPEND arg_LABELS "${folder}")
  list(REMOVE_DUPLICATES arg_LABELS)
  if((PEAL_SANITIZE AND (arg_UNSANITIZED OR "slow" IN_LIST arg_LABELS)) OR (PEAL_SANITIZE MATCHES "thread" AND arg_ONE_THREAD))
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
    return()
  endif()
  set(tests ${name})
  if(arg_SHARDS)
    set(tests)
    foreach(shard RANGE 1 ${arg_SHARDS})
      math(EXPR index "${shard} - 1")
      list(APPEND tests ${name}_${shard})
      add_test(NAME ${name}_${shard} COMMAND ${name})
      set_tests_properties(${name}_${shard} PROPERTIES
                           ENVIRONMENT "GTEST_TOTAL_SHARDS=${arg_SHARDS};GTEST_SHARD_INDEX=${index}")
    endforeach()
  else()
    add_test(NAME ${name} COMMAND ${name})
  endif()
  # The first run of a build starts the long ones first; later ones know how long they took.
  set_tests_properties(${tests} PROPERTIES TIMEOUT ${PEAL_TEST_TIMEOUT} COST ${arg_COST} LABELS "${arg_LABELS}")
endfunction()
