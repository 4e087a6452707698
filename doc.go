// Package mariposa defines the objects of the system: projects, versions, services,
// instances, nodes, tasks, and the errors that users see. Every object in the store has
// two halves with one writer each: its desired state (Spec) and its actual state
// (Status). The package imports no other package of this module and does not know
// stores, networks or drivers.
package mariposa
