// Package mariposa holds the nouns of the system: projects, versions, services,
// instances, nodes, tasks, and the errors that people see. Every noun in the
// store has two halves with one writer each: its desired state (Spec) and its
// actual state (Status). The package imports no other package of ours and does
// not know stores, networks or drivers.
package mariposa
