package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"github.com/moby/moby/api/types/container"
)

// Podman speaks Docker's API with some differences:
//
//   - It filters events by its own names for them, but reports some by Docker's (engine.go).
//   - Docker's request that changes limits does not exist before Podman 5.3. Its own does not work
//     for a container that has ended, and its inspection shows the limits that the container was
//     created with. So limits are always set, and after the start instead of before it.
//   - It does not read the output of a command that nobody reads, not even when that has been
//     killed (exec.go).

// podmanLimits are limits as Podman's own API expects them.
type podmanLimits struct {
	Memory podmanMemory `json:"memory"`
	CPU    podmanCPU    `json:"cpu"`
}

type podmanMemory struct {
	Limit int64 `json:"limit"`
	Swap  int64 `json:"swap"`
}

type podmanCPU struct {
	Quota  int64 `json:"quota"`
	Period int64 `json:"period"`
}

// limitPodman sets the limits of a running container of Podman.
func (d *Driver) limitPodman(ctx context.Context, id string, r container.Resources) error {
	body, err := json.Marshal(podmanLimits{Memory: podmanMemory{r.Memory, r.MemorySwap}, CPU: podmanCPU{r.CPUQuota, r.CPUPeriod}})
	if err != nil {
		return err
	}
	dial := d.api().Dialer()
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
	}
	to := "http://podman/v4.3.0/libpod/containers/" + url.PathEscape(id) + "/update"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, to, bytes.NewReader(body))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() // it was only read
	text, err := io.ReadAll(io.LimitReader(response.Body, 64<<10))
	switch {
	case err != nil:
		return err
	case response.StatusCode == http.StatusMethodNotAllowed || response.StatusCode == http.StatusNotFound && !json.Valid(text):
		return &explained{"this version of Podman cannot change the limits of a running container: update it to 4.3 or newer", nil}
	case response.StatusCode >= http.StatusBadRequest:
		var refused struct {
			Message string `json:"message"`
		}
		if json.Unmarshal(text, &refused) == nil && refused.Message != "" {
			return errors.New(refused.Message)
		}
		return fmt.Errorf("its limits cannot be changed: %s", response.Status)
	}
	return nil
}
