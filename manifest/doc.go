// Package manifest turns submitted YAML or JSON into a checked project: it owns
// the keys and their rules, the interpolations, the graph of references, the
// digests by which instances are found outdated, and what differs between two
// versions. It is pure: bytes in, values or faults out. It knows nothing of
// stores, clocks, networks, nodes or the values of metadata.
//
// A fault is never the last word alone: Parse goes on after each and lists all
// of them, with the line each one stands on.
package manifest
