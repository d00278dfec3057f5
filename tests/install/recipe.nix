# What package.nix makes of nixpkgs: each input is its own name.
recipe:
let
  given = {
    lib = {
      cmakeBool = name: value: "-D${name}=${if value then "ON" else "OFF"}";
      licenses.asl20 = "Apache-2.0";
    };
    stdenv.mkDerivation = f: let self = f self; in self;
    fetchurl = file: file;
  };
  function = import recipe;
in
builtins.toJSON (function (builtins.mapAttrs (name: _: given.${name} or name) (builtins.functionArgs function)))
