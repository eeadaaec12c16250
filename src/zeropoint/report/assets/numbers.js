"use strict";
// Numbers of a tensor, and the command that explains any of them.

/** As a shell reads it back. */
function shellQuoted(text) {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
}

/** `base` with the tensor and the index, which may be written with spaces and brackets. */
function traceCommand(base, tensor, index) {
  return `${base} --tensor ${shellQuoted(tensor)} --at ${shellQuoted(index.replaceAll(/[\s[\]]/g, ""))}`;
}

/** The first part of a joined name that no other name has; the whole of it where there is none. */
function distinctPart(name, others) {
  const taken = new Set(others.filter((other) => other !== name).flatMap((other) => other.split(";")));
  return name.split(";").find((part) => part && !taken.has(part)) ?? name;
}
