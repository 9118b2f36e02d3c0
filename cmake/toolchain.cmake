# What the machine must bring, looked for before anything else: a compiler and Python's headers. CMake's own words for
# their absence do not say what to do.

include(CheckLanguage)

foreach(language IN ITEMS C CXX)
  check_language(${language})
  if(NOT CMAKE_${language}_COMPILER)
    if(language STREQUAL "CXX")
      set(variable CXX)
      set(what "C++17 compiler")
    else()
      set(variable CC)
      set(what "C compiler")
    endif()
    # Forgotten, so that the next attempt in the same build directory looks again.
    unset(CMAKE_${language}_COMPILER CACHE)
    set(looked_for "")
    if(DEFINED ENV{${variable}})
      set(looked_for " (${variable} is set to \"$ENV{${variable}}\")")
    endif()
    message(FATAL_ERROR
      "No working ${what} was found${looked_for}.\n"
      "Install one and build again:\n"
      "  Debian, Ubuntu:  apt install g++\n"
      "  Fedora, RHEL:    dnf install gcc-c++\n"
      "  Alpine:          apk add g++\n"
      "  macOS:           xcode-select --install\n"
      "or name the one you have in the environment:\n"
      "  CC=gcc-13 CXX=g++-13 pip install .")
  endif()
  enable_language(${language})
endforeach()

macro(find_python)
  find_package(Python 3.11 COMPONENTS Interpreter Development.Module ${SKBUILD_SABI_COMPONENT})
  if(NOT Python_FOUND)
    message(FATAL_ERROR
      "Python 3.11 or newer with its headers (Python.h) was not found; looked at: ${Python_EXECUTABLE}\n"
      "Install the headers and build again:\n"
      "  Debian, Ubuntu:  apt install python3-dev\n"
      "  Fedora, RHEL:    dnf install python3-devel\n"
      "or use a Python that carries them (python.org, uv, pyenv, conda).")
  endif()
endmacro()
