// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/schema/names.hpp"

#include <algorithm>
#include <vector>

#include "base/ascii.hpp"
#include "base/join.hpp"
#include "documents/names.hpp"

namespace kiln::build {
namespace {

constexpr std::size_t kMaxNameLength = 32;

bool is_lower(char c) {
  return c >= 'a' && c <= 'z';
}
bool is_lower_or_digit(char c) {
  return is_lower(c) || is_digit(c);
}
bool is_alphanumeric(char c) {
  return is_lower_or_digit(c) || (c >= 'A' && c <= 'Z');
}

/// Words of characters for which `is_in_word` holds, joined by single ones of `joints`.
bool are_words(std::string_view text, bool (*is_in_word)(char), std::string_view joints) {
  bool after_word = false;
  for (const char c : text) {
    const bool in_word = is_in_word(c);
    if (!in_word && (!after_word || joints.find(c) == std::string_view::npos)) return false;
    after_word = in_word;
  }
  return after_word;
}

// Those that are spelt in lower case without a leading underscore: others are not snake_case
// anyway.
constexpr std::string_view kKeywords =
    " alignas alignof and and_eq asm auto bitand bitor bool break case catch char class co_await "
    "co_return co_yield compl concept const const_cast consteval constexpr constinit continue "
    "decltype default delete do double dynamic_cast else enum explicit export extern false float "
    "for friend goto if inline int linux long mutable namespace new noexcept not not_eq nullptr "
    "operator or or_eq private protected public register reinterpret_cast requires return short "
    "signed sizeof static static_assert static_cast struct switch template this thread_local "
    "throw true try typedef typeid typename union unix unsigned using virtual void volatile while "
    "xor xor_eq main ";

// Macros of the C library's headers, which a package's sources may include.
constexpr std::string_view kMacros =
    " alloca assert assert_perror be16toh be32toh be64toh errno htobe16 htobe32 htobe64 htole16 "
    "htole32 htole64 isascii issubnormal le16toh le32toh le64toh major makedev math_errhandling "
    "minor offsetof pthread_cleanup_pop pthread_cleanup_push "
    "pthread_cleanup_pop_restore_np pthread_cleanup_push_defer_np sa_handler sa_sigaction "
    "sched_priority setjmp si_addr si_addr_lsb si_arch si_band si_call_addr si_fd si_int si_lower "
    "si_overrun si_pid si_pkey si_ptr si_status si_stime si_syscall si_timerid si_uid si_upper "
    "si_utime si_value sigev_notify_attributes sigev_notify_function sigmask sigsetjmp st_atime "
    "st_ctime st_mtime stderr stdin stdout strdupa strndupa timeradd timerclear timercmp "
    "timerisset timersub toascii va_arg va_copy va_end va_start ";
constexpr std::string_view kCapitalMacros =
    " ACCESSPERMS ALLPERMS BUFSIZ CANBSIZ CMPLX CMPLXF CMPLXF128 CMPLXF32 CMPLXF32X CMPLXF64 "
    "CMPLXF64X CMPLXL CSIGNAL DEFFILEMODE DTTOIF E2BIG EACCES EADDRINUSE EADDRNOTAVAIL EADV "
    "EAFNOSUPPORT EAGAIN EALREADY EBADE EBADF EBADFD EBADMSG EBADR EBADRQC EBADSLT EBFONT EBUSY "
    "ECANCELED ECHILD ECHRNG ECOMM ECONNABORTED ECONNREFUSED ECONNRESET EDEADLK EDEADLOCK "
    "EDESTADDRREQ EDOM EDOTDOT EDQUOT EEXIST EFAULT EFBIG EHOSTDOWN EHOSTUNREACH EHWPOISON EIDRM "
    "EILSEQ EINPROGRESS EINTR EINVAL EIO EISCONN EISDIR EISNAM EKEYEXPIRED EKEYREJECTED "
    "EKEYREVOKED EL2HLT EL2NSYNC EL3HLT EL3RST ELFCLASS32 ELFCLASS64 ELFCLASSNONE ELFCLASSNUM "
    "ELFDATA2LSB ELFDATA2MSB ELFDATANONE ELFDATANUM ELFMAG ELFMAG0 ELFMAG1 ELFMAG2 ELFMAG3 "
    "ELIBACC ELIBBAD ELIBEXEC ELIBMAX ELIBSCN ELNRNG ELOOP EMEDIUMTYPE EMFILE EMLINK EMSGSIZE "
    "EMULTIHOP ENAMETOOLONG ENAVAIL ENETDOWN ENETRESET ENETUNREACH ENFILE ENOANO ENOBUFS ENOCSI "
    "ENODATA ENODEV ENOENT ENOEXEC ENOKEY ENOLCK ENOLINK ENOMEDIUM ENOMEM ENOMSG ENONET ENOPKG "
    "ENOPROTOOPT ENOSPC ENOSR ENOSTR ENOSYS ENOTBLK ENOTCONN ENOTDIR ENOTEMPTY ENOTNAM "
    "ENOTRECOVERABLE ENOTSOCK ENOTSUP ENOTTY ENOTUNIQ ENXIO EOF EOPNOTSUPP EOVERFLOW EOWNERDEAD "
    "EPERM EPFNOSUPPORT EPIPE EPROTO EPROTONOSUPPORT EPROTOTYPE ERANGE EREMCHG EREMOTE EREMOTEIO "
    "ERESTART ERFKILL EROFS ESHUTDOWN ESOCKTNOSUPPORT ESPIPE ESRCH ESRMNT ESTALE ESTRPIPE ETIME "
    "ETIMEDOUT ETOOMANYREFS ETXTBSY EUCLEAN EUNATCH EUSERS EWOULDBLOCK EXDEV EXFULL ElfW FAPPEND "
    "FASYNC FFSYNC FILENAME FNDELAY FNONBLOCK HUGE HZ I IFTODT INFINITY MAX MAXFLOAT "
    "MAXHOSTNAMELEN MAXNAMLEN MAXPATHLEN MAXSYMLINKS MIN MINSIGSTKSZ NAN NBBY NCARGS NFDBITS "
    "NGREG NGROUPS NODEV NOFILE NOGROUP NSIG NULL NZERO POLLERR POLLHUP POLLIN POLLMSG POLLNVAL "
    "POLLOUT POLLPRI POLLRDBAND POLLRDHUP POLLRDNORM POLLREMOVE POLLWRBAND POLLWRNORM SELFMAG "
    "SIGABRT SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGFPE SIGHUP SIGILL SIGINT SIGIO SIGIOT "
    "SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX SIGRTMIN SIGSEGV SIGSTKFLT SIGSTKSZ "
    "SIGSTOP SIGSYS SIGTERM SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM "
    "SIGWINCH SIGXCPU SIGXFSZ SNAN SNANF SNANF128 SNANF32 SNANF32X SNANF64 SNANF64X SNANL "
    "WCONTINUED WEOF WEXITED WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED WNOHANG "
    "WNOWAIT WSTOPPED WSTOPSIG WTERMSIG WUNTRACED ";

bool is_listed(std::string_view list, std::string_view word) {
  return list.find(" " + std::string(word) + " ") != std::string_view::npos;
}

/// Of inttypes.h: PRIX64, SCNdLEAST8 and the like.
bool is_format(std::string_view name) {
  if (!name.starts_with("PRI") && !name.starts_with("SCN")) return false;
  name.remove_prefix(3);
  constexpr std::string_view kConversions = "dioxuX";
  if (name.empty() || kConversions.find(name.front()) == name.npos) return false;
  name.remove_prefix(1);
  for (const std::string_view kind : {"LEAST", "FAST"}) {
    if (name.starts_with(kind)) name.remove_prefix(kind.size());
  }
  return is_listed(" 8 16 32 64 MAX PTR ", name);
}

}  // namespace

std::string why_not_identifier(std::string_view name) {
  if (!are_words(name, is_lower_or_digit, "_") || !is_lower(name.front())) {
    return "is not snake_case";
  }
  if (name.size() > kMaxNameLength) return "has more than 32 characters";
  if (is_listed(kKeywords, name)) return "is a word that C++ keeps for itself";
  if (is_listed(kMacros, name)) return "is a macro of the C library";
  if (name.ends_with("_t")) return "ends in _t, as the names of C's types do";
  if (name.starts_with("kiln_")) return "begins with kiln_, as the names of Kiln's own types do";
  return "";
}

std::string why_not_symbol(std::string_view name) {
  if (!are_words(name, is_alphanumeric, "") || name.front() < 'A' || name.front() > 'Z') {
    return "is not a symbol; expected [A-Z][A-Za-z0-9]*, or a number without quotes";
  }
  if (name.size() > kMaxNameLength) return "has more than 32 characters";
  if (is_listed(kCapitalMacros, name) || is_format(name)) return "is a macro of the C library";
  return "";
}

bool is_value_word(std::string_view name) {
  return name.size() <= kMaxNameLength && are_words(name, is_lower_or_digit, "-_");
}

std::string_view shared_folder_of(std::string_view path) {
  constexpr std::string_view kBeside = "../";
  if (!path.starts_with(kBeside)) return {};
  path.remove_prefix(kBeside.size());
  const std::string_view name = path.substr(0, path.find('/'));
  return is_package_name(name) ? name : std::string_view();
}

bool is_source_path(std::string_view path, std::string_view suffix) {
  if (const std::string_view name = shared_folder_of(path); !name.empty()) {
    path.remove_prefix(static_cast<std::size_t>(name.end() - path.begin()));
    if (path.empty()) return false;
    path.remove_prefix(1);  // the slash
  }
  // No component is empty, ".", ".." or a hidden file.
  bool begins = true;
  for (const char c : path) {
    const bool fits = is_alphanumeric(c) || c == '_' || c == '-';
    if (!fits && (begins || (c != '.' && c != '/'))) return false;
    begins = c == '/';
  }
  return !begins && path.size() > suffix.size() && path.ends_with(suffix);
}

std::string stem_of(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash != std::string_view::npos) path.remove_prefix(slash + 1);
  return std::string(path.substr(0, path.rfind('.')));
}

std::string soname_for(std::string_view pattern, int cuda_major) {
  constexpr std::string_view kPlace = "{cuda_major}";
  std::string soname(pattern);
  const std::size_t at = soname.find(kPlace);
  if (at != std::string::npos) soname.replace(at, kPlace.size(), std::to_string(cuda_major));
  return soname;
}

bool is_release(std::string_view text) {
  constexpr std::size_t kMostDigits = 6;
  const std::vector<std::string_view> numbers = split(text, '.');
  return are_words(text, is_digit, ".") && numbers.size() == 3 &&
         std::ranges::all_of(numbers,
                             [](const auto& number) { return number.size() <= kMostDigits; });
}

std::string camel_case(std::string_view name) {
  std::string text;
  bool start = true;
  for (char c : name) {
    if (c == '-' || c == '_') {
      start = true;
      continue;
    }
    text += start && c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
    start = false;
  }
  return text;
}

}  // namespace kiln::build
