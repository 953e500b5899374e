-- Does what the request says; see the setup.
SELECT status, response, events FROM torture('transfers', $1, $2, $3)
