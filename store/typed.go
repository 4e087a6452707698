package store

import "mariposa"

// Of is a record whose kind is known at compile time. A pointer to one converts to and
// from a *Record at no cost.
type Of[S, T any] Record

// The records of each kind.

//nolint:revive // one comment is enough for all of them
type (
	Node         = Of[mariposa.NodeSpec, mariposa.NodeStatus]
	User         = Of[mariposa.UserSpec, mariposa.UserStatus]
	Organization = Of[mariposa.OrganizationSpec, mariposa.OrganizationStatus]
	Package      = Of[mariposa.PackageSpec, mariposa.PackageStatus]
	Key          = Of[mariposa.KeySpec, mariposa.KeyStatus]
	Project      = Of[mariposa.ProjectSpec, mariposa.ProjectStatus]
	Service      = Of[mariposa.ServiceSpec, mariposa.ServiceStatus]
	Version      = Of[mariposa.VersionSpec, mariposa.VersionStatus]
	Metadata     = Of[mariposa.MetadataSpec, mariposa.MetadataStatus]
	Part         = Of[mariposa.PartSpec, mariposa.PartStatus]
	Settings     = Of[mariposa.SettingsSpec, mariposa.SettingsStatus]
	Task         = Of[mariposa.TaskSpec, mariposa.TaskStatus]
	Volume       = Of[mariposa.VolumeSpec, mariposa.VolumeStatus]
	Network      = Of[mariposa.NetworkSpec, mariposa.NetworkStatus]
	Attachment   = Of[mariposa.AttachmentSpec, mariposa.AttachmentStatus]
	Instance     = Of[mariposa.InstanceSpec, mariposa.InstanceStatus]
	Name         = Of[mariposa.NameSpec, mariposa.NameStatus]
	Token        = Of[mariposa.TokenSpec, mariposa.TokenStatus]
	Answer       = Of[mariposa.AnswerSpec, mariposa.AnswerStatus]
)

// Spec returns the desired state.
func (r *Of[S, T]) Spec() *S { return r.Halves.Spec.(*S) }

// Status returns the actual state; nil if there is no such object, or no status yet.
func (r *Of[S, T]) Status() *T {
	if r == nil {
		return nil
	}
	st, _ := r.Halves.Status.(*T)
	return st
}

// Any is a record, typed or not.
type Any interface{ Record() *Record }

// Record returns the untyped record; nil stays nil.
func (r *Of[S, T]) Record() *Record { return (*Record)(r) }

// Record returns the record itself.
func (r *Record) Record() *Record { return r }
