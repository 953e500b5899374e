-- The same as `transfers`, under another name.
SELECT status, response, events FROM torture('refunds', $1, $2, $3)
