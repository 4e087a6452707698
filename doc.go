// Package mariposa holds the nouns of the house: projects, versions, services,
// instances, nodes, tasks, and the errors people meet. Every noun that the
// store keeps has two halves with one writer each: what is wanted of it (its
// Spec) and what is so (its Status). The package imports nothing of ours and
// knows nothing of stores, networks or drivers.
package mariposa
