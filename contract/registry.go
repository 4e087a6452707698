package contract

import "time"

// Registries is a list of an organization's logins to registries of images.
type Registries struct {
	Registries []Registry `json:"registries" nullable:"false"`
}

// Registry is a login to a registry of images, without its password.
type Registry struct {
	Registry string    `json:"registry" doc:"host of the registry, as in the names of its images"`
	Username string    `json:"username"`
	Updated  time.Time `json:"updated"`
	Author   string    `json:"author" doc:"who set it"`
}

// RegistryLogin is a request to set a login.
type RegistryLogin struct {
	Username string `json:"username" maxLength:"255"`
	Password string `json:"password" maxLength:"16384" doc:"password or access token; it is stored encrypted, and no response contains it"`
}
