// The search of the index page: shows the packages whose text has all the words, in any case. The words stand in
// the address after '#', so that a search can be linked to and the way back leads to it.
"use strict";

const box = document.querySelector(".search");
const input = document.getElementById("query");
const count = document.getElementById("count");
const packages = Array.from(document.querySelectorAll("#packages > li"), (item) => ({
  item,
  text: item.textContent.toLowerCase(),
}));

function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  let shown = 0;
  for (const { item, text } of packages) {
    item.hidden = !words.every((word) => text.includes(word));
    if (!item.hidden) ++shown;
  }
  count.textContent = words.length === 0 ? "" : `${shown} of ${packages.length} packages`;
}

function typed() {
  search();
  const words = input.value.trim();
  history.replaceState(null, "", words === "" ? "#" : "#" + encodeURIComponent(words));
}

function fromAddress() {
  try {
    input.value = decodeURIComponent(location.hash.slice(1));
  } catch {
    input.value = "";
  }
  search();
}

box.hidden = false;
input.addEventListener("input", typed);
addEventListener("hashchange", fromAddress);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Escape" && document.activeElement === input) {
    input.value = "";
    typed();
  }
});
fromAddress();
