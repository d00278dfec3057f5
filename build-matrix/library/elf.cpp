// SPDX-License-Identifier: Apache-2.0
#include "build-matrix/library/elf.hpp"

#include <elf.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>

#include "kiln/error.hpp"

namespace kiln::build {
namespace {

constexpr std::uint32_t kPackedRelocations = 19;  // SHT_RELR; elf.h has it from glibc 2.36 on
constexpr unsigned char kCudaEntry = 0x10;        // in st_other of a cubin's symbols: a kernel

class Reader {
 public:
  Reader(std::string_view bytes, std::string_view subject) : bytes_(bytes), subject_(subject) {}

  ElfLibrary read_library() {
    read_header();
    if (header_.e_type != ET_DYN) fail("is not a shared library");
    library_.machine = header_.e_machine;
    read_segments();
    read_sections();
    for (const ElfSection& each : library_.sections) {
      if (each.name == ".note.gnu.property") read_properties(each.bytes);
    }
    if (const Elf64_Shdr* dynamic = section_of_type(SHT_DYNAMIC)) read_dynamic(*dynamic);
    if (const Elf64_Shdr* symbols = section_of_type(SHT_DYNSYM)) read_symbols(*symbols);
    for (const Elf64_Shdr& header : sections_) {
      if (header.sh_type == SHT_RELA) read_relocations(header);
      if (header.sh_type == kPackedRelocations) read_packed_relocations(header);
    }
    return std::move(library_);
  }

  std::vector<std::string> read_kernels() {
    read_header();
    sections_ = table<Elf64_Shdr>(header_.e_shoff, header_.e_shnum);
    std::vector<std::string> kernels;
    const Elf64_Shdr* header = section_of_type(SHT_SYMTAB);
    if (header == nullptr) fail("has no symbols");
    for (const auto& symbol : records<Elf64_Sym>(*header)) {
      if (ELF64_ST_TYPE(symbol.st_info) != STT_FUNC || !(symbol.st_other & kCudaEntry)) continue;
      kernels.push_back(text(section(header->sh_link), symbol.st_name));
    }
    std::sort(kernels.begin(), kernels.end());
    return kernels;
  }

 private:
  void read_header() {
    if (bytes_.size() < sizeof(Elf64_Ehdr) || std::memcmp(bytes_.data(), ELFMAG, SELFMAG) != 0) {
      fail("is not an ELF file");
    }
    header_ = at<Elf64_Ehdr>(0);
    if (header_.e_ident[EI_CLASS] != ELFCLASS64 || header_.e_ident[EI_DATA] != ELFDATA2LSB) {
      fail("is not a 64-bit little-endian ELF file");
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(ErrorCode::kBuild, std::string(subject_) + ": " + what);
  }

  std::string_view range(std::uint64_t offset, std::uint64_t size) const {
    if (offset > bytes_.size() || size > bytes_.size() - offset) {
      fail("a part of " + std::to_string(size) + " bytes at " + std::to_string(offset) +
           " lies outside of the file's " + std::to_string(bytes_.size()));
    }
    return bytes_.substr(offset, size);
  }

  // Copied out: nothing promises that a table in the file is aligned.
  template <class Record>
  Record at(std::uint64_t offset) const {
    Record record;
    std::memcpy(&record, range(offset, sizeof(Record)).data(), sizeof(Record));
    return record;
  }

  template <class Record>
  std::vector<Record> table(std::uint64_t offset, std::uint64_t count) const {
    if (count > bytes_.size() / sizeof(Record)) fail("a table has more entries than the file");
    std::vector<Record> records(count);
    const std::string_view source = range(offset, count * sizeof(Record));
    if (count != 0) std::memcpy(records.data(), source.data(), source.size());
    return records;
  }

  template <class Record>
  std::vector<Record> records(const Elf64_Shdr& section) const {
    return table<Record>(section.sh_offset, section.sh_size / sizeof(Record));
  }

  std::string text(const Elf64_Shdr& strings, std::uint64_t offset) const {
    const std::string_view all = range(strings.sh_offset, strings.sh_size);
    if (offset >= all.size()) fail("a name lies outside of its string table");
    const std::size_t end = all.find('\0', offset);
    if (end == std::string_view::npos) fail("a name does not end");
    return std::string(all.substr(offset, end - offset));
  }

  const Elf64_Shdr& section(std::uint64_t index) const {
    if (index >= sections_.size()) fail("a table refers to a section that does not exist");
    return sections_[index];
  }

  const Elf64_Shdr* section_of_type(std::uint32_t type) const {
    const auto found = std::ranges::find(sections_, type, &Elf64_Shdr::sh_type);
    return found == sections_.end() ? nullptr : &*found;
  }

  void read_segments() {
    library_.executable_stack = true;  // what the kernel assumes where PT_GNU_STACK is missing
    for (const Elf64_Phdr& segment : table<Elf64_Phdr>(header_.e_phoff, header_.e_phnum)) {
      if (segment.p_type == PT_GNU_STACK) {
        library_.executable_stack = (segment.p_flags & PF_X) != 0;
      }
      if (segment.p_type == PT_LOAD && (segment.p_flags & PF_X) && (segment.p_flags & PF_W)) {
        library_.writable_code = true;
      }
    }
  }

  void read_sections() {
    sections_ = table<Elf64_Shdr>(header_.e_shoff, header_.e_shnum);
    if (sections_.empty()) fail("has no section table");
    const Elf64_Shdr& names = section(header_.e_shstrndx);
    for (const Elf64_Shdr& header : sections_) {
      if (header.sh_type == SHT_NULL || header.sh_type == SHT_NOBITS) continue;
      library_.sections.push_back({.name = text(names, header.sh_name),
                                   .address = header.sh_addr,
                                   .bytes = range(header.sh_offset, header.sh_size)});
    }
  }

  // A note of GNU: sizes, type, "GNU"; then properties, each a type, a size and so many bytes, up
  // to the next multiple of 8. One of them has a bit for each level that the code needs.
  void read_properties(std::string_view note) {
    constexpr std::uint32_t kX86Needed = 0xc0008002;  // GNU_PROPERTY_X86_ISA_1_NEEDED
    constexpr std::size_t kHeader = sizeof(Elf64_Nhdr) + sizeof("GNU");
    for (std::size_t at = kHeader; at + 3 * sizeof(std::uint32_t) <= note.size();) {
      std::uint32_t words[3];  // type, size, and the first of the bytes
      std::memcpy(words, note.data() + at, sizeof(words));
      if (words[0] == kX86Needed) library_.x86_level = static_cast<int>(std::bit_width(words[2]));
      at += 2 * sizeof(std::uint32_t) + (std::uint64_t{words[1]} + 7) / 8 * 8;
    }
  }

  // A pointer to what the library itself defines may go by a symbol that another library could
  // replace, where it is not hidden. One that is IRELATIVE is what a function gives at the load.
  void read_relocations(const Elf64_Shdr& header) {
    const bool arm = library_.machine == EM_AARCH64;
    const std::uint64_t relative = arm ? R_AARCH64_RELATIVE : R_X86_64_RELATIVE;
    const std::uint64_t absolute = arm ? R_AARCH64_ABS64 : R_X86_64_64;
    const std::uint64_t resolved = arm ? R_AARCH64_IRELATIVE : R_X86_64_IRELATIVE;
    const Elf64_Shdr* table = section_of_type(SHT_DYNSYM);
    const auto symbols = table != nullptr ? records<Elf64_Sym>(*table) : std::vector<Elf64_Sym>();
    for (const auto& entry : records<Elf64_Rela>(header)) {
      const std::uint64_t type = ELF64_R_TYPE(entry.r_info);
      const std::uint64_t symbol = ELF64_R_SYM(entry.r_info);
      auto target = static_cast<std::uint64_t>(entry.r_addend);
      if (type == resolved) library_.run_at_load.insert("IRELATIVE");
      if (type == absolute && symbol < symbols.size() && symbols[symbol].st_shndx != SHN_UNDEF) {
        target += symbols[symbol].st_value;
      } else if (type != relative) {
        continue;
      }
      library_.pointers[entry.r_offset] = target;
    }
  }

  // An even word is the address of a pointer; each bit of an odd one, from the second on, says
  // whether one of the 63 words behind it is a pointer, too. They point to what stands there.
  void read_packed_relocations(const Elf64_Shdr& header) {
    constexpr std::uint64_t kWord = sizeof(std::uint64_t);
    constexpr std::uint64_t kBits = 63;
    library_.packed_relocations = true;
    std::uint64_t next = 0;
    const auto add = [&](std::uint64_t place) {
      library_.pointers[place] = library_.number_at<std::uint64_t>(place);
    };
    for (const std::uint64_t word : records<std::uint64_t>(header)) {
      if ((word & 1) == 0) {
        add(word);
        next = word + kWord;
        continue;
      }
      for (std::uint64_t bit = 0; bit < kBits; ++bit) {
        if ((word >> (bit + 1) & 1) != 0) add(next + bit * kWord);
      }
      next += kBits * kWord;
    }
  }

  void read_dynamic(const Elf64_Shdr& dynamic) {
    const Elf64_Shdr& strings = section(dynamic.sh_link);
    for (const Elf64_Dyn& entry : records<Elf64_Dyn>(dynamic)) {
      const std::uint64_t value = entry.d_un.d_val;
      if (entry.d_tag == DT_NULL) return;
      if (entry.d_tag == DT_NEEDED) library_.needed.push_back(text(strings, value));
      if (entry.d_tag == DT_SONAME) library_.soname = text(strings, value);
      if (entry.d_tag == DT_RPATH || entry.d_tag == DT_RUNPATH)
        library_.rpath = text(strings, value);
      if (entry.d_tag == DT_TEXTREL || (entry.d_tag == DT_FLAGS && (value & DF_TEXTREL) != 0)) {
        library_.text_relocations = true;
      }
      if (entry.d_tag == DT_INIT) library_.run_at_load.insert("DT_INIT");
      if (entry.d_tag == DT_FINI) library_.run_at_load.insert("DT_FINI");
    }
  }

  // The version numbers that symbols refer to, from the chain of needed libraries and, for each,
  // the chain of versions needed of it; as symbols that have no name yet.
  std::map<unsigned, ElfSymbol> read_needed_versions() const {
    std::map<unsigned, ElfSymbol> versions;
    const Elf64_Shdr* needs = section_of_type(SHT_GNU_verneed);
    if (needs == nullptr) return versions;
    const Elf64_Shdr& strings = section(needs->sh_link);
    std::uint64_t place = needs->sh_offset;
    for (std::uint32_t left = needs->sh_info; left != 0; --left) {
      const auto need = at<Elf64_Verneed>(place);
      std::uint64_t entry = place + need.vn_aux;
      for (unsigned more = need.vn_cnt; more != 0; --more) {
        const auto version = at<Elf64_Vernaux>(entry);
        versions[version.vna_other & 0x7fffU] = {.name = "",
                                                 .version = text(strings, version.vna_name),
                                                 .library = text(strings, need.vn_file)};
        if (version.vna_next == 0) break;
        entry += version.vna_next;
      }
      if (need.vn_next == 0) break;
      place += need.vn_next;
    }
    return versions;
  }

  void read_symbols(const Elf64_Shdr& header) {
    const Elf64_Shdr& strings = section(header.sh_link);
    const auto symbols = records<Elf64_Sym>(header);
    auto versions = read_needed_versions();  // none has the number 0
    std::vector<Elf64_Half> numbers;
    if (const Elf64_Shdr* table_of_versions = section_of_type(SHT_GNU_versym)) {
      numbers = records<Elf64_Half>(*table_of_versions);
    }
    for (std::size_t i = 1; i < symbols.size(); ++i) {
      const Elf64_Sym& symbol = symbols[i];
      const unsigned binding = ELF64_ST_BIND(symbol.st_info);
      if (binding == STB_LOCAL) continue;
      const std::string name = text(strings, symbol.st_name);
      if (symbol.st_shndx != SHN_UNDEF) {
        library_.exported.push_back(name);
        continue;
      }
      ElfSymbol undefined = versions[i < numbers.size() ? numbers[i] & 0x7fffU : 0];
      undefined.name = name;
      undefined.weak = binding == STB_WEAK;
      library_.undefined.push_back(std::move(undefined));
    }
    std::sort(library_.exported.begin(), library_.exported.end());
  }

  std::string_view bytes_;
  std::string_view subject_;
  Elf64_Ehdr header_{};
  std::vector<Elf64_Shdr> sections_;
  ElfLibrary library_;
};

}  // namespace

std::string_view ElfLibrary::bytes_at(std::uint64_t address) const {
  for (const ElfSection& section : sections) {
    if (section.address == 0 || address < section.address) continue;
    if (address - section.address < section.bytes.size()) {
      return section.bytes.substr(address - section.address);
    }
  }
  return {};
}

std::string_view ElfLibrary::text_at(std::uint64_t address) const {
  const std::string_view rest = bytes_at(address);
  const std::size_t end = rest.find('\0');
  return end == std::string_view::npos ? std::string_view() : rest.substr(0, end);
}

ElfLibrary read_elf(std::string_view bytes, std::string_view subject) {
  return Reader(bytes, subject).read_library();
}

std::vector<std::string> cubin_kernels(std::string_view bytes, std::string_view subject) {
  return Reader(bytes, subject).read_kernels();
}

}  // namespace kiln::build
