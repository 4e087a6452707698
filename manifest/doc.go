// Package manifest turns submitted YAML or JSON into a checked project: it owns
// the keys and their rules, the interpolations, the graph of references, the
// digests by which instances are found outdated, and what differs between two
// versions. It also owns a project's metadata values as a document: reading and
// changing it, holding it to what the manifest declares, and what services become
// with it. It is pure: bytes in, values or faults out. It knows nothing of stores,
// clocks, networks or nodes, nor of how secrets are sealed; its faults never hold a
// value.
//
// A fault is never the last word alone: Parse goes on after each and lists all
// of them, with the line each one stands on.
package manifest
