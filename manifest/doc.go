// Package manifest turns submitted YAML or JSON into a checked project: it owns the keys
// and their rules, the interpolations, the graph of references, the digests by which
// instances are found outdated, and the differences between two versions. It also owns a
// project's metadata values as a document: it reads and changes it, checks it against
// what the manifest declares, and applies it to services. It is pure: bytes in, values or
// faults out. It does not know stores, clocks, networks or nodes, nor how secrets are
// sealed; its faults never contain a value.
//
// Parse does not stop at the first fault: it lists all of them, each with its
// line.
package manifest
