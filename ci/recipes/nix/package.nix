{
  lib,
  stdenv,
  fetchurl,
  cmake,
  ninja,
  pkg-config,
  cli11,
  curl,
  dlpack,
  libarchive,
  nlohmann_json,
  openssl,
}:
stdenv.mkDerivation (finalAttrs: {
  pname = "kiln";
  version = "@VERSION@";

  src = fetchurl {
    url = "@URL@/kiln-${finalAttrs.version}.tar.gz";
    sha256 = "@SHA256@";
  };

  nativeBuildInputs = [
    cmake
    ninja
    pkg-config
  ];
  buildInputs = [
    cli11
    nlohmann_json
  ];
  # kiln::kiln is static: a program that links it links these, too.
  propagatedBuildInputs = [
    curl
    dlpack
    libarchive
    openssl
  ];

  cmakeFlags = [
    (lib.cmakeBool "KILN_BUILD_TOOLS" false)
    (lib.cmakeBool "KILN_BUILD_TESTS" false)
  ];
  postInstall = "rm -r $out/share/lintian";

  doInstallCheck = true;
  installCheckPhase = "$out/bin/kiln --version";

  meta = {
    description = "Prebuilt GPU kernels: one call picks, verifies and loads the binary for this machine";
    homepage = "@SOURCE@";
    license = lib.licenses.asl20;
    platforms = [
      "x86_64-linux"
      "aarch64-linux"
    ];
    mainProgram = "kiln";
  };
})
