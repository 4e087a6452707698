package mariposa

import (
	"regexp"
	"strings"
	"time"
)

// RegistrySpec is what an organization uses to log in to a registry of images.
type RegistrySpec struct {
	Username string    `json:"username"`
	Password []byte    `json:"password"` // sealed with the key of the organization
	Updated  time.Time `json:"updated"`
	Author   string    `json:"author,omitempty"`
}

// Login is a login to a registry of images.
type Login struct {
	Registry string `json:"registry"`
	Username string `json:"username"`
	Password string `json:"password"`
}

// String keeps the password out of logs.
func (l Login) String() string { return l.Username + "@" + l.Registry }

// DefaultRegistry is the registry of images whose names have none.
const DefaultRegistry = "docker.io"

// RegistryOf returns the registry that the name of an image refers to.
func RegistryOf(image string) string {
	first, _, found := strings.Cut(image, "/")
	if !found || !strings.ContainsAny(first, ".:") && first != "localhost" {
		return DefaultRegistry
	}
	return strings.ToLower(first)
}

var registryPattern = regexp.MustCompile(`^([a-z0-9]([a-z0-9-]*[a-z0-9])?\.)*[a-z0-9]([a-z0-9-]*[a-z0-9])?(:[0-9]{1,5})?$`)

// CheckRegistry checks the name of a registry: its host as in the names of its images.
func CheckRegistry(name string) error {
	if len(name) > 255 || !registryPattern.MatchString(name) || RegistryOf(name+"/x") != name {
		return Errorf(InvalidArgument, "%q is not a registry: use the host in the names of its images, such as registry.example.com or registry.example.com:5000, or docker.io", name)
	}
	return nil
}
