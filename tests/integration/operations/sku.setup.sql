CREATE TABLE IF NOT EXISTS skus (sku text CONSTRAINT secret_constraint UNIQUE, email text, units smallint);
